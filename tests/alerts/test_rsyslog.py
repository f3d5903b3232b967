"""A real rsyslog takes each message once, with either of its TLS libraries."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import trustme

from tests.alerts.alertmanager import until
from tests.alerts.test_alert_sinks import made, notice

PROGRAM = shutil.which("rsyslogd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(PROGRAM is None, reason="no rsyslog here; tests/alerts/services installs it"),
]

CONFIG = """
global(defaultNetstreamDriver="{driver}" workDirectory="{folder}" defaultNetstreamDriverCAFile="{folder}/ca.pem"
    defaultNetstreamDriverCertFile="{folder}/cert.pem" defaultNetstreamDriverKeyFile="{folder}/key.pem")
module(load="imtcp" streamDriver.name="{driver}" streamDriver.mode="1" streamDriver.authMode="anon")
input(type="imtcp" port="{port}")
template(name="raw" type="string" string="%rawmsg%\\n")
action(type="omfile" file="{folder}/received" template="raw")
"""


def greets(port: int, authority: Path) -> bool:
    """Whether it is ready for TLS; rsyslog listens a little earlier."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            context.wrap_socket(plain, server_hostname="localhost").close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("driver", ["gtls", "ossl"])
def test_each_message_arrives_once(tmp_path: Path, driver: str) -> None:
    assert PROGRAM is not None
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own = authority.issue_cert("localhost")
    own.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "rsyslog.conf"
    config.write_text(CONFIG.format(driver=driver, folder=tmp_path, port=port))
    with (tmp_path / "log").open("w") as log:
        options = ["-n", "-f", str(config), "-i", str(tmp_path / "pid")]
        process = subprocess.Popen([PROGRAM, *options], stdout=log, stderr=log)
    received = tmp_path / "received"
    try:
        until(lambda: process.poll() is not None or greets(port, tmp_path / "ca.pem"), "rsyslog is ready")
        assert process.poll() is None, (tmp_path / "log").read_text()
        sink = made("syslog", host="localhost", port=port, ca_file=str(tmp_path / "ca.pem"))
        for number in range(3):
            sink.deliver(notice(key=f"al-0123456789ab/1/{number}"))
        until(lambda: received.exists() and received.read_text().count("\n") >= 3, "rsyslog has written")
    finally:
        process.terminate()
        process.wait()
    lines = received.read_text().splitlines()
    assert [f'key="al-0123456789ab/1/{n}"' in line for n, line in enumerate(lines)] == [True] * 3
    assert all(line.startswith("<106>1 2026-09-21T14:13:22.000Z ") for line in lines)
