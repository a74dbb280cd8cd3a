"""Builds what setup.cfg declares, with a README whose links work where it is shown alone, as on PyPI."""

import re
from configparser import RawConfigParser
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def absolute_links(text: str, home: str) -> str:
    """Return Markdown whose relative links are addresses of the repository at `home`."""
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", rf"]({home}/blob/main/\1)", text)


config = RawConfigParser()
config.read(HERE / "setup.cfg", encoding="utf-8")
setup(long_description=absolute_links((HERE / "README.md").read_text("utf-8"), config["metadata"]["url"]))
