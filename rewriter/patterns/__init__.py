"""What breaks capture, and what it becomes; a pattern knows neither command line nor recorder."""
