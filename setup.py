"""Builds what setup.cfg declares, with absolute links: in the README, which PyPI shows alone, and in the metadata."""

import re
from configparser import RawConfigParser
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def absolute_links(text: str, home: str) -> str:
    """Return Markdown whose relative links are addresses of the repository at `home`; images link to raw files."""
    text = re.sub(r"(!\[[^\]]*)\]\((?![a-z]+:)([^)\s]+)\)", rf"\1]({home}/raw/main/\2)", text)
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", rf"]({home}/blob/main/\1)", text)


config = RawConfigParser()
config.read(HERE / "setup.cfg", encoding="utf-8")
home = config["metadata"]["url"]
setup(
    long_description=absolute_links((HERE / "README.md").read_text("utf-8"), home),
    project_urls={
        "Documentation": f"{home}/tree/main/docs",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    },
)
