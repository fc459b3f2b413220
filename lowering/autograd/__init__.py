"""What stands around compiled programs so that autograd, and AOTAutograd, take them for eager."""
