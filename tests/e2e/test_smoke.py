from tests.support.gateway import Gateway


def test_answers(gateway: Gateway) -> None:
    assert "process" in gateway.say("What is Bulkhead?")
