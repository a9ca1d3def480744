"""The HTTP API: the one door for tenants, operators and workers, who then need no credentials of the store.

`handlers` are plain functions of a principal and a request; `replica` follows the log to answer reads; `routes` is the
table of what can be asked, from which `app` makes the HTTP server and `openapi` its description; `client` speaks to it.
"""
