"""Is there a Java that Spark can run on? Asked before Spark is started, whose own answer is a stack trace."""

import os
import re
import shutil
import subprocess

from pyspark_mq.errors import JavaMissing

OLDEST = 17

_REMEDY = f"""Spark needs a Java runtime, version {OLDEST} or later. Install one:
  Debian, Ubuntu   sudo apt-get install openjdk-17-jre-headless    (Debian 13: openjdk-21-jre-headless)
  Fedora           sudo dnf install java-21-openjdk-headless
  macOS            brew install --cask temurin@17
or point JAVA_HOME at the one you have."""


def require_java() -> int:
    """The major version of the Java that Spark will start: JAVA_HOME's, else the one on PATH.

    Raises JavaMissing when there is none or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise JavaMissing(f"No java on PATH, and JAVA_HOME is not set. {_REMEDY}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        # macOS has a /usr/bin/java that only says that there is none.
        raise JavaMissing(f"{java} does not run ({error}). {_REMEDY}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', answer)
    if version is None or int(version[1]) < OLDEST:
        raise JavaMissing(f"{java} is {answer.splitlines()[0] if answer else 'of an unknown version'}. {_REMEDY}")
    return int(version[1])
