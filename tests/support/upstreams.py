"""Gateways whose upstreams are other gateways."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from tests.support.gateway import Gateway
from tests.support.raw_server import Handler, RawServer, serving


def upstreams(**gateways: Gateway) -> str:
    """The tables of a configuration that has these gateways as upstreams."""
    return "".join(
        f'[upstreams.{name}]\nurl = "{gateway.url}/v1"\n' for name, gateway in gateways.items()
    )


@asynccontextmanager
async def stand_ins(
    handlers: dict[str, Handler],
) -> AsyncIterator[tuple[str, dict[str, RawServer]]]:
    """Servers that send what they are told to: the tables of a configuration that has them as
    upstreams, and the servers.
    """
    async with AsyncExitStack() as stack:
        tables, servers = "", {}
        for name, handler in handlers.items():
            servers[name], server = await stack.enter_async_context(serving(handler))
            tables += f'[upstreams.{name}]\nurl = "http://127.0.0.1:{server.port}/v1"\n'
        yield tables, servers


@contextmanager
def behind(models: tuple[str, ...] = (), **gateways: Gateway) -> Iterator[Gateway]:
    """A gateway with these models of its own, and with these gateways as upstreams."""
    gateway = Gateway(config=upstreams(**gateways), models=models)
    try:
        yield gateway
    finally:
        gateway.stop()


def listed(gateway: Gateway) -> dict[str, Any]:
    """The models that it lists, by their ids."""
    found = gateway.client.get("/v1/models", headers=_operator(gateway)).json()["data"]
    return {item["id"]: item for item in found}


def upstream_of(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.status()["upstreams"]
    return found


def reload_with(gateway: Gateway, config: str) -> None:
    """Have it read this configuration."""
    gateway.config_path.write_text(config, "utf-8")
    gateway.client.post("/admin/v1/reload").raise_for_status()


def _operator(gateway: Gateway) -> dict[str, str]:
    file = gateway.state_dir / "admin.key"
    return {"authorization": f"Bearer {file.read_text().strip()}"} if file.exists() else {}
