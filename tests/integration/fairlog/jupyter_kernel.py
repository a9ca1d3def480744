"""`python jupyter_kernel.py URL TOKEN CODE`: prints what CODE prints in a new kernel of the Jupyter server there."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect


async def main(url: str, token: str, code: str) -> None:
    """Start a kernel, have it run the code, and print what it prints until it is idle again."""
    headers = {"Authorization": f"token {token}"}
    asked = HTTPRequest(f"{url}api/kernels", "POST", headers, body="{}", request_timeout=120)
    kernel = json.loads((await AsyncHTTPClient().fetch(asked)).body)["id"]
    channels = f"{url.replace('http', 'ws', 1)}api/kernels/{kernel}/channels"
    socket = await websocket_connect(HTTPRequest(channels, headers=headers))
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "username": "",
        "session": "s",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    await socket.write_message(json.dumps(message))
    while (text := await socket.read_message()) is not None:
        said = json.loads(text)
        if said["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        if said["msg_type"] == "stream":
            sys.stdout.write(said["content"]["text"])
        if said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
            return


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
