"""A client of the Model Context Protocol asks the server that the command line starts."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.refusals import refuses
from tests.support.small_traces import write_trace
from traces.errors import Code
from ui.api.agents import tools
from ui.request import JobRequest, check_steered

#: The server finds the packages of this checkout.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}


@pytest.mark.thorough
def test_a_client_asks_every_kind_of_question(tmp_path):
    pytest.importorskip("mcp")
    from mcp import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    trace = str(write_trace(tmp_path / "trace.json"))
    questions = (
        ("names", {}),
        ("predict", {"model": "lenet5", "machine": "h100", "batch": 64, "strategies": ["turbodl"], "scale": {"memory": 2}}),
        ("predict", {"model": "my_model.py:make", "machine": "h100"}),
        ("search", {"model": "lenet5", "machine": "h100", "batch": 64}),
        ("replay", {"trace": trace}),
        ("replay", {"trace": trace, "what_if": ["host 2x faster"]}),
        ("diff", {"before": trace, "after": trace}),
    )

    async def ask() -> tuple[list[str], str, list]:
        server = StdioServerParameters(command=sys.executable, args=["-m", "ui.cli", "mcp"], cwd=str(tmp_path), env=ENVIRONMENT)
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            offered = [tool.name for tool in (await session.list_tools()).tools]
            skill = (await session.read_resource("skill://schedcast")).contents[0].text
            return offered, skill, [await session.call_tool(name, arguments) for name, arguments in questions]

    offered, skill, answers = asyncio.run(ask())
    assert all(f"`{name}`" in skill for name in offered)
    assert offered == ["predict", "search", "replay", "diff", "names"]
    texts = [" ".join(answer.content[0].text.split()) for answer in answers]
    for text, expected in zip(
        texts,
        (
            "machines: ",
            "turbodl",
            "is code, which this server may not run",
            "fastest",
            "ms recorded",
            "host 2x faster",
            "B takes as long as A",
        ),
        strict=True,
    ):
        assert expected in text


def test_names_that_no_encoding_has_and_names_of_arguments_are_like_others(tmp_path):
    predict, _, replay, *_ = tools([])
    assert "remove:/a?b/" in replay(str(write_trace(tmp_path / "trace.json")), ["host 2x faster", "remove:/a\ud800b/"])
    with refuses(Code.NAME, "knows no 'self'"):
        predict("lenet5", "h100", 8, scale={"self": 2.0})


def test_agents_run_no_code_and_read_no_file_that_was_not_named(tmp_path):
    (tmp_path / "config.json").write_text("secret")
    predict, search, *_ = tools(["mine.py:make"])
    for model in ("yours.py:make", f"hf:{tmp_path}", f"hf:{tmp_path}/config.json"):
        for ask in (predict, search):
            with refuses(
                Code.REQUEST, f"{model} is (code|a file), which this server may not .*; start it with schedcast mcp --model {model}"
            ):
                ask(model, "h100")
    for text in ("1f1b:schedule=/etc/shadow", "gpipe:stages=2, schedule =/etc/shadow", "deepa:config=/etc/shadow"):
        with refuses(Code.REQUEST, "= names a file, which neither the app nor an agent may read; use schedcast predict --"):
            predict("lenet5", "2xgpu-pcie", strategies=[text])
    with refuses(Code.REQUEST, "config.json is a file, which this server may not read"):
        predict("lenet5", str(tmp_path / "config.json"))


def test_models_that_the_server_was_started_with_may_be_code():
    check_steered(JobRequest("mine.py:make"), ["mine.py:make"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("closed", "status"), [("<&-", 0), (">&-", 2), ("| true", 0)])
def test_the_server_without_a_client_ends(tmp_path, closed, status):
    pytest.importorskip("mcp")
    line = f"{sys.executable} -m ui.cli mcp {closed}"
    first = '{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    done = subprocess.run(["sh", "-c", line], input=first, capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
