"""The demonstration: Poolkeeper's whole job on a real cluster, as a story that one can watch.

Guarantees that it exits with 0 only if a second program (`verify`) finds in the database, the API server and the model
server's log that all of it happened. Leaves nothing running, also after Ctrl-C.
"""
