"""Modules as data: written as JSON, and built again from it by classes that are registered."""

from ptml.config.decode import from_config
from ptml.config.encode import to_config
from ptml.config.errors import ConfigError
from ptml.config.folder import load_network, save_network
from ptml.config.registry import register

__all__ = ["ConfigError", "from_config", "load_network", "register", "save_network", "to_config"]
