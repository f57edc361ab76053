"""Answers of the studio's server over HTTP, to a browser and to an attacker."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from interlace.orders.completion import find_completion
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.studio.connection import Connection
from interlace.studio.game import MAX_PANELS, GameOptions
from interlace.studio.guard import MAX_BODY_BYTES
from interlace.studio.link import Game, _read_numbers, encode_game
from interlace.studio.pages import PAGES, load_assets

from ..studio_server import ask, running, send


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running() as port:
        yield port


def test_the_page_and_all_that_it_names_is_there(port: int) -> None:
    status, headers, body = send(port, "GET", "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<script>" not in body
    assert b"style=" not in body
    assert b"://" not in body
    for name, asset in load_assets().items():
        status, headers, found = send(port, "GET", f"/{name}")
        assert (status, found) == (200, asset.content)
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy


def test_pages_repeat_one_head_and_one_sheet_of_keys(port: int) -> None:
    found = {page.name: send(port, "GET", f"/{page.name}.html")[2].decode() for page in PAGES}
    for page in PAGES:
        text = found[page.name]
        assert text.count('aria-current="page"') == 1
        assert f'aria-current="page">{page.label}<' in text
        assert (text.count("<main"), text.count('<dialog id="help"'), text.count("<!--")) == (1, 1, 0)
        assert all(f">{other.label}</a>" in text for other in PAGES)
        identities = re.findall(r' id="([^"]*)"', text)
        assert len(identities) == len(set(identities))


def test_a_position_has_the_counters_of_the_game(port: int) -> None:
    status, position = ask(port, "position", {"path": [0, 4, 8, 12, 28], "at": 5, "ghost": "row"})
    assert status == 200
    assert (position["loads"], position["hits"], position["load_bytes"]) == (6, 4, 6 * 131072)
    assert (position["costs"], position["next_out"]) == ([2, 1, 1, 1, 1], 5)
    assert position["ghost"]["loads"] == 7
    status, opened = ask(port, "open", {"link": position["link"]})
    assert (status, opened["path"], opened["at"], opened["ghost"]) == (200, [0, 4, 8, 12, 28], 5, "row")


def test_a_search_tells_its_progress_and_ends_with_a_proof(port: int) -> None:
    path = [Visit(0, 0), Visit(1, 1), Visit(2, 2)]
    body = json.dumps({"options": {"m": 384, "n": 384, "capacity": 3}, "path": [0, 16, 32]}).encode()
    status, _, answer = send(port, "POST", "/api/least", body)
    *searching, last = (json.loads(line) for line in answer.splitlines())
    least = find_completion(PanelGrid(3, 3), path, 3, EvictionPolicy.LRU)
    assert (status, {line["state"] for line in searching} <= {"searching"}, last["state"]) == (200, True, "done")
    assert (last["loads"], last["proved"], last["path"][:3]) == (least.loads, True, [0, 16, 32])
    assert last["next"] == last["path"][3]


@pytest.mark.parametrize(
    ("data", "known"),
    [
        ({"options": {"m": 384, "n": 384, "capacity": 3, "cache": "opt"}, "path": [0, 16]}, "begins with no tile"),
        ({"options": {"tile_k": 128, "capacity": 3, "unit": "tiles", "workers": 4}}, "workers side by side"),
        ({"options": {"n": 448, "capacity": 1 << 19, "unit": "bytes"}}, "unequal sizes"),
    ],
)
def test_where_nothing_proves_the_least_it_says_so(port: int, data: dict, known: str) -> None:
    _, _, answer = send(port, "POST", "/api/least", json.dumps(data).encode())
    last = json.loads(answer.splitlines()[-1])
    assert (last["state"], last["proved"]) == ("done", False)
    assert known in last["why"]
    assert last["lower_bound"] <= last["loads"]


def test_a_search_that_nobody_waits_for_is_cancelled(port: int) -> None:
    """Two searches of minutes are begun and left; a third one is answered as soon as one of them has noticed."""
    body = json.dumps({"options": {"m": 896, "n": 896, "capacity": 6}, "path": [0, 32, 64]}).encode()
    head = f"POST /api/least HTTP/1.1\r\nhost: localhost:{port}\r\norigin: http://localhost:{port}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"

    def is_begun() -> bool:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode() + body)
            return b"searching" in connection.recv(4096) + connection.recv(4096)

    assert is_begun()
    assert is_begun()
    end = time.monotonic() + 240
    while not is_begun():
        assert time.monotonic() < end, "no search was given up within four minutes"


# ---------------------------------------------------------------- who is refused


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", None])
def test_a_foreign_host_is_refused(port: int, host: str | None) -> None:
    """A name of another's whose address is this machine's (DNS rebinding) comes with its own Host."""
    for path in ("/", "/main.js", "/api/position"):
        status, _, body = send(port, "GET", path, host=host and host.format(port=port))
        assert status in (400, 421)
        assert b"html" not in body


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "null", None]
)
def test_a_foreign_origin_is_refused(port: int, origin: str | None) -> None:
    status, _, body = send(port, "POST", "/api/position", b"{}", origin=origin and origin.format(port=port))
    assert (status, json.loads(body)) == (403, {"error": "this server answers requests of its own page only"})
    if origin:
        assert send(port, "GET", "/", origin=origin.format(port=port))[0] == 403


def test_only_json_is_taken_so_that_no_form_of_another_site_reaches_it(port: int) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        assert send(port, "POST", "/api/position", b"{}", content_type=kind)[0] == 415


def test_both_names_of_this_machine_are_taken(port: int) -> None:
    there = {"host": f"localhost:{port}", "origin": f"http://localhost:{port}"}
    assert send(port, "POST", "/api/position", b"{}", **there)[0] == 200


def test_a_long_body_is_refused_whether_its_length_is_told_or_not(port: int) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)
    assert send(port, "POST", "/api/position", body)[0] == 413
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    assert send(port, "POST", "/api/position", chunked, transfer_encoding="chunked")[0] == 413
    tiles = MAX_PANELS**2
    longest = {"options": {"m": 128 * MAX_PANELS, "n": 128 * MAX_PANELS}, "path": [4 * i for i in range(tiles)]}
    assert len(json.dumps(longest)) < MAX_BODY_BYTES
    assert ask(port, "position", longest)[1]["at"] == tiles


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b"\xff", b'{"path": 1e999}', b'{"at": ' + b"9" * 5000 + b"}"]
)
@pytest.mark.parametrize("name", ["position", "least"])
def test_a_malformed_body_is_refused(port: int, name: str, body: bytes) -> None:
    status, _, answer = send(port, "POST", f"/api/{name}", body)
    assert status == 400
    assert json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("setting", {"options": {"m": 0}}),
        ("setting", {"game": 1}),
        ("position", {"path": [0, 0]}),
        ("position", {"ghost": "mine", "path": [0]}),
        ("open", {}),
        ("open", {"link": "x"}),
        ("open", {"file": 1}),
        ("open", {"file": "/etc/passwd"}),
        ("order", {"name": 3}),
        ("order", {"name": "../row"}),
        ("curve", {"options": {"capacity": -1}}),
        ("save", {"path": [4000]}),
        ("chain/setting", {"options": {"rows": 99}}),
        ("chain/position", {"path": [16]}),
        ("chain/position", {"ghost": "mine"}),
        *((f"{page}{name}", {"ghost": "\ud800"}) for page in ("", "chain/") for name in ("position", "save")),
        ("order", {"name": "\ud800"}),
        ("chain/order", {"name": "\udfff"}),
        ("open", {"link": "\ud800"}),
        ("chain/open", {"file": "\ud800"}),
        ("setting", {"\ud800": 1}),
        ("setting", {"options": {"unit": "\ud800"}}),
        ("setting", {"options": {"m": float("nan")}}),
        ("chain/order", {"name": ["whole rows"]}),
        ("chain/open", {"link": "x"}),
        ("chain/open", {"file": "/etc/passwd"}),
        ("chain/save", {"path": [16]}),
        ("plan", {"file": "/etc/passwd"}),
        ("plan/item", {"item": 0}),
        ("timeline", {"file": "/etc/passwd"}),
        ("records", [1]),
    ],
)
def test_what_makes_no_sense_is_told(port: int, name: str, data: object) -> None:
    status, answer = ask(port, name, data)
    assert (status, list(answer)) == (400, ["error"])


def test_a_link_of_one_endless_number_is_refused_at_once() -> None:
    """It takes a time that grows with the square of its bytes."""
    numbers = _read_numbers(b"\xff" * 100)
    with pytest.raises(ValueError):  # noqa: PT011  # without words: the link's reader says what it is
        next(numbers)


@pytest.mark.parametrize("name", ["plan", "timeline", "records"])
def test_without_a_file_there_is_nothing_to_look_at(port: int, name: str) -> None:
    assert ask(port, name, {}) == (200, {"name": ""})


@pytest.mark.parametrize(
    "path",
    [
        *("/../pyproject.toml", "/..%2f..%2fapp.py", "/%2e%2e/app.py", "//etc/passwd"),
        *("/page/index.html", "/app.py", "/main.js%00"),
    ],
)
def test_no_path_reaches_the_file_system(port: int, path: str) -> None:
    assert send(port, "GET", path)[0] == 404


def test_other_methods_are_refused(port: int) -> None:
    assert send(port, "GET", "/api/position")[0] in (404, 405)
    assert send(port, "PUT", "/", b"", origin=f"http://127.0.0.1:{port}")[0] == 405


def test_a_link_in_the_address_is_opened_as_the_page_does(port: int) -> None:
    game = Game(GameOptions(capacity=3), (Visit(1, 2, True),), 1)
    status, opened = ask(port, "open", {"link": encode_game(game)})
    assert (status, opened["path"], opened["options"]["capacity"]) == (200, [4 * 6 + 1], 3)


# ---------------------------------------------------------------- who keeps connections


BEGUN = b"GET / HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"


def is_closed(connected: socket.socket) -> bool:
    """Wait for the server to close a connection; whatever it says before is read."""
    connected.settimeout(60)
    try:
        while connected.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        BEGUN,
        b"POST /api/position HTTP/1.1\r\nhost: 127.0.0.1:%d\r\norigin: http://127.0.0.1:%d\r\n"
        b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    ],
    ids=["nothing", "headers", "body"],
)
def test_a_client_that_sends_no_whole_request_is_cut_off(
    port: int, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "request_timeout_s", 0.2)
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(sent.replace(b"%d", b"%d" % port))
        assert is_closed(slow)
    assert send(port, "GET", "/")[0] == 200


def test_a_client_that_sends_no_second_request_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "request_timeout_s", 0.2)
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(BEGUN % port + b"\r\n")
        assert slow.recv(1) == b"H"
        slow.sendall(BEGUN % port)
        assert is_closed(slow)


def test_many_connections_are_refused_and_the_next_request_is_answered(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "max_connections", 4)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(BEGUN % port)
        refused = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert is_closed(refused)
    assert send(port, "GET", "/")[0] == 200
