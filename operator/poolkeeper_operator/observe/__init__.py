"""Reading the world: objects of the API server, stats of the databases. Nothing here writes to the API server."""
