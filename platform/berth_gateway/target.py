"""One replica as usual requests of one key go there: its connections, and what is constant of what is sent and recorded."""

from __future__ import annotations

from berth_gateway.admit import Caller
from berth_gateway.contract import Replica, Route
from berth_gateway.endpoint import Endpoint
from berth_gateway.route import Spot
from berth_gateway.stencil import Stencil


class Target:
    """`ask`: a request to it, for its id, the length of its body, and that in two parts."""

    __slots__ = ("ask", "replica", "spot", "stencil", "stream_stencil")

    def __init__(
        self, gateway: str, caller: Caller, route: Route, endpoint: Endpoint, replica: Replica, spot: Spot
    ) -> None:
        self.replica, self.spot = replica, spot
        head = (
            f"POST {endpoint.path} HTTP/1.1\r\nhost: {replica.host}:{replica.port}\r\n"
            f"authorization: Bearer {replica.secret}\r\ncontent-type: application/json\r\nx-request-id: req_"
        ).encode("latin-1")
        self.ask = head.replace(b"%", b"%%") + b"%b\r\ncontent-length: %d\r\n\r\n%b%b"
        revision = route.revision if replica.revision is None else replica.revision
        told = (gateway, caller.org.org_id, caller.key.key_id, route.deployment_id, revision, endpoint.name)
        self.stencil = Stencil(*told, stream=False)
        self.stream_stencil = Stencil(*told, stream=True)
