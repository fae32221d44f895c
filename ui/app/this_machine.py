"""The app answers requests from this machine's own pages only, so that no other site can read it through the user's browser."""

import re

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

#: The hosts under which a browser on this machine reaches the app. The port may be any, because it may be forwarded.
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")
_HTTP = re.compile("^https?://")
REFUSAL = "This app answers pages of this machine only; open it as http://127.0.0.1:PORT.\n"


class ThisMachineOnly:
    """ASGI middleware that refuses HTTP requests and websockets unless they come from a page of this app on this machine.

    The Host header must name this machine: a site whose name was made to resolve to 127.0.0.1 (DNS rebinding) sends its own name. The
    Origin header, if there is one, must be the page's own: pages of other servers, also of this machine's, send theirs.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or own_request(Headers(scope=scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        else:
            await PlainTextResponse(REFUSAL, status_code=403)(scope, receive, send)


def own_request(headers: Headers) -> bool:
    """Whether the headers of a request have exactly one Host, which names this machine, and no Origin but that host."""
    hosts = [host.lower() for host in headers.getlist("host")]
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        return False
    return all(_HTTP.sub("", origin.lower()) == hosts[0] for origin in headers.getlist("origin"))
