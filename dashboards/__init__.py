"""Shows what the audit knows, in a browser: `kvwitness dashboard`. It holds no SQL and judges nothing."""
