from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificate(NamedTuple):
    path: Path
    key: Path

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path, self.key)
        return context


def certificate(folder: Path, name: str = "cert") -> Certificate:
    """Make a certificate for 127.0.0.1. Skips the test without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, to make a certificate")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-keyout", made.key, "-out", made.path], check=True, capture_output=True)
    return made
