"""The two checks of outbound addresses refuse internal ones in every spelling, no public one."""

import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.networks import Networks, check_url, may_call, parse_networks
from tests.support.properties import quick

LOOPBACK = parse_networks("127.0.0.0/8 ::1")
LAN = parse_networks("10.0.0.0/8")

PUBLIC_HOSTS = [
    *("hooks.example.com", "hooks.example.com.", "HOOKS.Example.COM"),
    *("xn--bcher-kva.example", "my_service.example", "receiver", "7eleven.example"),
    *("8.8.8.8", "8.8.8.8.", "1.1", "0x08080808", "010.010.010.010", "134744072"),
    *("172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0"),
    *("[2606:4700:4700::1111]", "[2A00:1450:4001::5]", "[::ffff:8.8.8.8]"),
    "[64:ff9b::808:808]",
]

INNER_HOSTS = [
    # loopback, in every spelling that a resolver accepts
    *("127.0.0.1", "127.0.0.1.", "127.1", "127.0.1", "127.255.255.254", "2130706433"),
    *("017700000001", "0177.0.0.1", "0177.1", "0x7f.0.0.1", "0X7F.1", "0x7f000001"),
    *("0x7f.0x1", "127.0x0.0.01", "0", "0x0", "0x", "00", "0.0"),
    # private, shared, link-local, metadata
    *("10.0.0.1", "10.1", "012.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1"),
    *("3232235521", "100.64.0.1", "100.100.100.200", "100.127.255.255", "169.254.169.254"),
    *("169.254.43518", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "168.63.129.16"),
    "192.0.0.192",
    # documentation, multicast, reserved, broadcast
    *("192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "224.0.0.1"),
    *("239.255.255.250", "240.0.0.1", "255.255.255.255", "4294967295"),
    # IPv6
    *("[::]", "[::1]", "[0:0:0:0:0:0:0:1]", "[fe80::1]", "[febf::1]", "[fec0::1]"),
    *("[fc00::1]", "[fd00:ec2::254]", "[fd20:ce::254]", "[ff02::1]", "[ff0e::1]"),
    *("[2001:db8::1]", "[3fff::1]", "[100::1]", "[5f00::1]"),
    # IPv4 inside IPv6
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:10.0.0.1]"),
    *("[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[::127.0.0.1]", "[::a9fe:a9fe]"),
    *("[::ffff:0:127.0.0.1]", "[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]"),
    *("[64:ff9b:1::10.0.0.1]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2002:808:808::1]"),
    *("[2001:0:a9fe:a9fe::]", "[2001:0:4136:e378:8000:63bf:3fff:fdd2]"),
    # internal host names
    *("localhost", "localhost.", "LocalHost", "a.localhost", "printer.local"),
    *("metadata.google.internal", "metadata.google.internal."),
]

MALFORMED = [
    "",
    "hooks.example.com",
    "//hooks.example.com/",
    "/path",
    "http:",
    "http://",
    "http:///path",
    "http:hooks.example.com",
    "https:/hooks.example.com",
    "ftp://hooks.example.com/",
    "file:///etc/passwd",
    "gopher://hooks.example.com/",
    "javascript:alert(1)",
    "unix:///run/docker.sock",
    "http+unix://hooks.example.com/",
    # userinfo and look-alikes
    "http://user@hooks.example.com/",
    "http://user:pass@hooks.example.com/",
    "http://@hooks.example.com/",
    "http://hooks.example.com@127.0.0.1/",
    "http://127.0.0.1\\@hooks.example.com/",
    "http:\\\\hooks.example.com",
    "http://hooks.example.com/#",
    "http://hooks.example.com/#part",
    "http://hooks.example.com#@127.0.0.1/",
    # ports
    "http://hooks.example.com:0/",
    "http://hooks.example.com:65536/",
    "http://hooks.example.com:-1/",
    "http://hooks.example.com:+80/",
    "http://hooks.example.com:8_0/",
    "http://hooks.example.com:http/",
    "http://hooks.example.com:80:80/",
    # blanks, control characters, other alphabets
    " http://hooks.example.com/",
    "http://hooks.example.com/ ",
    "http://hooks.example.com/a b",
    "http://hooks.exa\tmple.com/",
    "http://hooks.example.com/\n",
    "http://hooks.example.com/\r\nHost: inner",
    "http://hooks.example.com/\x00",
    "http://hooks.example.com/\x7f",
    "http://hooks.example.com/\u2028",
    "http://hooks.example.com/\u00a0",
    "http://b\u00fccher.example/",
    "http://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460/",
    "http://\uff11\uff12\uff17.0.0.1/",
    "http://\u0661\u0662\u0667.0.0.1/",
    "http://127\u30020.0.1/",
    "http://loc\u017falhost/",
    # invalid host names
    "http://./",
    "http://../",
    "http://a..example/",
    "http://127.0.0.1../",
    "http://.example/",
    "http://-a.example/",
    "http://a-.example/",
    "http://a*b.example/",
    "http://127%2e0.0.1/",
    "http://%31%32%37.0.0.1/",
    "http://" + "a" * 64 + ".example/",
    "http://" + "a." * 130 + "example/",
    # invalid IPv4 addresses
    "http://256.1.1.1/",
    "http://1.2.3.4.5/",
    "http://1.2.3.4.0/",
    "http://1.2.3.256/",
    "http://1.256.1/",
    "http://4294967296/",
    "http://08.8.8.8/",
    "http://0xg.1/",
    "http://1_0.0.0.1/",
    "http://example.1/",
    "http://example.0x1/",
    "http://99999999999999999999/",
    # brackets
    "http://[/",
    "http://[]/",
    "http://[::1/",
    "http://::1/",
    "http://[127.0.0.1]/",
    "http://[v1.fe80::a]/",
    "http://[2600::1]evil.example/",
    "http://evil.example[2600::1]/",
    "http://[fe80::1%eth0]/",
    "http://[fe80::1%25eth0]/",
    "http://[2600::1%251]/",
    "http://[2600::1::1]/",
]


def test_public_hosts_are_accepted() -> None:
    for host in PUBLIC_HOSTS:
        for form in ("https://{}", "HTTP://{}:8080/hooks?a=1&b=%20"):
            assert check_url(form.format(host), allowed=()) is None, host


@pytest.mark.trap("a webhook into the private network")
def test_private_hosts_are_refused() -> None:
    for host in INNER_HOSTS:
        assert check_url(f"https://{host}/hooks", allowed=()), host
        assert check_url(f"http://{host}:8080", allowed=()), host


@pytest.mark.parametrize("url", ["http://0.0.0.0/", "http://0.0.0.0:80", "http://[::]/"])
def test_the_unspecified_address_is_this_machine(url: str) -> None:
    assert check_url(url, allowed=())
    assert check_url(url, allowed=LOOPBACK)


def test_malformed_addresses_are_refused_even_where_everything_is_allowed() -> None:
    everything = parse_networks("0.0.0.0/0, ::/0")
    assert [url for url in MALFORMED if not check_url(url, allowed=everything)] == []


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "localhost", "a.localhost"],
)
def test_an_allowed_network_may_be_called_in_every_notation(host: str) -> None:
    assert check_url(f"http://{host}:9000/", allowed=LOOPBACK) is None


@pytest.mark.parametrize(
    ("host", "allowed", "fits"),
    [
        ("10.1.2.3", LAN, True),
        ("11.1.2.3", LAN, True),
        ("192.168.0.1", LAN, False),
        ("127.0.0.1", LAN, False),
        ("localhost", LAN, False),
        ("hooks.corp.internal", LAN, True),
        ("localhost", parse_networks("::1"), True),
        ("localhost", parse_networks("127.0.0.1"), True),
    ],
)
def test_only_allowed_networks_are_accepted(host: str, allowed: Networks, fits: bool) -> None:
    assert (check_url(f"http://{host}/", allowed=allowed) is None) is fits


def test_https_only() -> None:
    assert check_url("https://hooks.example.com/", allowed=(), https_only=True) is None
    error = check_url("http://hooks.example.com/", allowed=(), https_only=True)
    assert error == "The address must start with https://."


def test_length_limit() -> None:
    url = "https://hooks.example.com/".ljust(2048, "a")
    assert check_url(url, allowed=()) is None
    assert check_url(url + "a", allowed=())


def test_every_refusal_has_an_error_message() -> None:
    urls = [*MALFORMED, *(f"http://{host}/" for host in INNER_HOSTS)]
    errors = [check_url(url, allowed=()) for url in urls]
    assert all(error is not None and error.endswith(".") for error in errors)


@quick
@given(st.text())
def test_no_text_breaks_the_check(text: str) -> None:
    check_url(text, allowed=())
    check_url(f"http://{text}", allowed=())
    assert may_call(text, ()) is False


def host_numbers() -> st.SearchStrategy[str]:
    byte, word = st.integers(0, 300), st.integers(0, 2**32 + 10)
    spelled = (byte | word).flatmap(lambda n: st.sampled_from([str(n), hex(n), f"0{n:o}"]))
    return st.lists(spelled, min_size=1, max_size=5).map(".".join)


@quick
@given(host_numbers())
def test_numeric_hosts_are_read_as_the_resolver_reads_them(host: str) -> None:
    verdict = check_url(f"http://{host}/", allowed=())
    try:
        resolved = socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        assert verdict == f"{host} is not an IPv4 address."
    else:
        assert (verdict is None) is may_call(resolved, ())


@quick
@given(st.ip_addresses(v=4))
def test_no_public_address_is_one_that_python_calls_private(address: IPv4Address) -> None:
    if may_call(str(address), ()):
        assert address.is_global
        assert not address.is_multicast


@quick
@given(st.ip_addresses(v=4))
def test_an_ipv4_address_keeps_its_verdict_inside_ipv6(address: IPv4Address) -> None:
    verdict = may_call(str(address), ())
    assert may_call(f"::ffff:{address}", ()) is verdict
    assert may_call(f"64:ff9b::{address}", ()) is verdict
    assert may_call(f"::{address}", ()) is False
    assert may_call(str(IPv6Address((0x2002 << 112) | (int(address) << 80))), ()) is False


@pytest.mark.parametrize("ip", ["", "localhost", "127.1", "0x7f000001", "8.8.8.8:80", "[::1]"])
def test_only_numeric_addresses_may_be_called(ip: str) -> None:
    assert may_call(ip, parse_networks("0.0.0.0/0 ::/0")) is False


def test_a_zone_does_not_open_a_link_local_address() -> None:
    assert may_call("fe80::1%eth0", ()) is False


def test_networks_are_read_from_a_list() -> None:
    networks = parse_networks(" 10.0.0.0/8,192.168.1.1\n fd00::/8 ")
    assert [str(network) for network in networks] == ["10.0.0.0/8", "192.168.1.1/32", "fd00::/8"]
    assert parse_networks("") == ()


@pytest.mark.parametrize("text", ["10.0.0.1/8", "private", "10.0.0.0/33", "10.0.0.0/8;::1"])
def test_a_bad_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a network; write it like") as caught:
        parse_networks(f"127.0.0.1, {text}")
    assert text in str(caught.value)
