"""Logs of engines, gateways and clients, one module per kind: what each line says about a request."""
