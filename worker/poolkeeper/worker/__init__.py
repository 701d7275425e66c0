"""The worker process: `poolkeeper worker module:app`."""
