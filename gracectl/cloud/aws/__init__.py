"""Provider for EC2. Not imported before the settings name it: its dependencies are an extra."""

from importlib.util import find_spec

if find_spec("aiobotocore") is None:
    raise ImportError("No module named 'aiobotocore'; run in a checkout of gracectl: pip install '.[aws]'")
