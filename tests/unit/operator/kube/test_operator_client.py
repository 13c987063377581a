from __future__ import annotations

import pytest

from rl_operator.kube.client import proxy_of


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://api.example.com:6443", "http://proxy.example.com:3128"),
        ("https://10.0.0.1", None),
        ("http://api.example.com", None),
        ("", None),
    ],
)
def test_the_proxy_of_the_environment_counts(
    monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.example.com:3128")
    monkeypatch.setenv("no_proxy", "10.0.0.1,localhost")
    assert proxy_of(url) == proxy
