"""OpenTelemetry: what comes in over OTLP, and what its spans, logs and metrics say about requests."""
