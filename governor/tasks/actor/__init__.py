"""What runs inside a runner, beside user code."""
