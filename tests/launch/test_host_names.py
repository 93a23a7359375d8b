"""What is written as --hosts: words, a file, and what is wrong with them."""

from __future__ import annotations

import pytest

from rankless.cli import main
from rankless.errors import UserError
from rankless.launch.hosts.names import Host, parse_hosts


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        parse_hosts(text)
    return caught.value.problems


def test_words_and_a_file(tmp_path):
    hosts = parse_hosts("a, me@b:4 ,c:2:/mnt/data,d::/x,[fe80::1]:3")
    expected = [Host("a"), Host("me@b", 4), Host("c", 2, "/mnt/data"), Host("d", None, "/x")]
    assert hosts == [*expected, Host("[fe80::1]", 3)] and hosts[-1].address == "fe80::1"
    assert [str(host) for host in hosts] == ["a", "me@b:4", "c:2:/mnt/data", "d::/x", "[fe80::1]:3"]
    file = tmp_path / "hosts"
    file.write_text("# ours\na:4  # the fast one\n\nb::/data\n")
    assert parse_hosts(str(file)) == [Host("a", 4), Host("b", None, "/data")]


def test_every_mistake_of_a_file_is_named_with_its_line(tmp_path):
    file = tmp_path / "machines.txt"
    file.write_text("a:4\n-oProxyCommand=x\nb:none\n\na\nfe80::1\n")
    assert problems(str(file)) == (
        f"{file}:2: '-oProxyCommand=x': not a host; expected NAME, NAME:DEVICES or NAME:DEVICES:DATA",
        f"{file}:3: 'b:none': the number of devices is 'none'; expected a whole number of at least 1",
        f"{file}:5: 'a' is given twice; use each host once, as in a:4 for 4 devices",
        f"{file}:6: 'fe80::1': an IPv6 address needs brackets; expected [fe80::1] or [fe80::1]:DEVICES",
    )
    file.write_text("# nobody\n")
    assert problems(str(file)) == (f"{file}: no hosts; expected at least one host, as in a,b:4",)


EMPTY = " contains an empty name; expected hosts such as a,b:4"
NO_FILE = ": no such file; expected hosts such as a,b:4, or a file that lists them"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,,b", f"--hosts: 'a,,b'{EMPTY}"),
        (",", "--hosts: no hosts; expected at least one host, as in a,b:4"),
        ("a:0", "--hosts: 'a:0': the number of devices is '0'; expected a whole number of at least 1"),
        ("machnes.txt", f"--hosts is 'machnes.txt'{NO_FILE}"),
        ("./two", f"--hosts is './two'{NO_FILE}"),
    ],
)
def test_mistakes_in_words(text, expected):
    assert problems(text) == (expected,)


def test_a_number_of_devices_that_no_host_would_use(capsys):
    assert main(["train", "digits", "--hosts", "a:1,b:2", "--devices", "4"]) == 2
    assert capsys.readouterr().err == (
        "error: --devices is 4, but --hosts already gives the number of devices for every host; remove "
        "--devices\n"
    )
