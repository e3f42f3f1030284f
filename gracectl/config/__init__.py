"""Settings: types, sources (one YAML file, the environment), and output."""

from gracectl.config.errors import ConfigError
from gracectl.config.loading import LoadedSettings, load_settings, read_settings
from gracectl.config.settings import RELOADABLE, Settings

__all__ = ("RELOADABLE", "ConfigError", "LoadedSettings", "Settings", "load_settings", "read_settings")
