"""Programs kept between processes."""
