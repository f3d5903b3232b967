"""Adapters, one file per engine: how the tracer is attached to it. `base` says what an adapter is made of."""
