"""The search tool: an index, a server that speaks Search-R1's /retrieve, a client, and a stub for tests.

Either side can be swapped for Search-R1's own. Importing this package imports none of its heavy parts.
"""
