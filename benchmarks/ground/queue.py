"""A queue of SQS on moto's server, in a process of its own.

    python -m benchmarks.ground.queue

Prints its URL, and runs until its standard input ends.
"""

from __future__ import annotations

import logging
import sys

import botocore.session
from moto.server import ThreadedMotoServer

REGION, ACCOUNT = "us-west-2", "123456789012"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}
"""Of the variables that clients of the server need."""


def client(url: str) -> botocore.client.BaseClient:
    """A client of this server, or of the one that a queue's URL is on."""
    endpoint = "/".join(url.split("/")[:3])
    session = botocore.session.get_session()
    session.set_credentials("testing", "testing")
    return session.create_client("sqs", region_name=REGION, endpoint_url=endpoint)


def main() -> None:
    """Serve."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    print(client(f"http://127.0.0.1:{port}").create_queue(QueueName="notices")["QueueUrl"], flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
