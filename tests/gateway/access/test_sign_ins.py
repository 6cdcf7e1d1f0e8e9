"""Codes and sessions of the page, attacked."""

from __future__ import annotations

from gateway.access.sign_ins import CODE_S, MOST_WRONG, SESSION_S, SignIns


def test_a_code_works_once() -> None:
    sign_ins = SignIns()
    code = sign_ins.code(0.0)
    secret = sign_ins.exchange(code, 1.0)
    assert secret is not None
    assert sign_ins.exchange(code, 1.0) is None
    held = sign_ins.find(secret.encode(), 1.0)
    assert held is not None
    assert (held.caller.admin, held.key) == (True, None)


def test_a_code_is_no_session_and_a_session_no_code() -> None:
    sign_ins = SignIns()
    code = sign_ins.code(0.0)
    assert sign_ins.find(code.encode(), 0.0) is None
    secret = sign_ins.exchange(code, 0.0)
    assert secret is not None
    assert sign_ins.exchange(secret, 0.0) is None


def test_codes_and_sessions_end() -> None:
    sign_ins = SignIns()
    late = sign_ins.code(0.0)
    assert sign_ins.exchange(late, CODE_S) is None
    secret = sign_ins.exchange(sign_ins.code(0.0), CODE_S - 1)
    assert secret is not None
    ends_at = CODE_S - 1 + SESSION_S
    assert sign_ins.find(secret.encode(), ends_at - 1) is not None
    assert len(list(sign_ins.sessions(ends_at - 1))) == 1
    assert sign_ins.find(secret.encode(), ends_at) is None
    assert list(sign_ins.sessions(ends_at)) == []


def test_neither_codes_nor_sessions_pile_up() -> None:
    sign_ins = SignIns()
    codes = [sign_ins.code(0.0) for _ in range(20)]
    assert sign_ins.exchange(codes[0], 0.0) is None, "the oldest are gone"
    assert sign_ins.exchange(codes[-1], 0.0) is not None
    secrets = [sign_ins.exchange(sign_ins.code(0.0), 0.0) for _ in range(50)]
    held = [secret and sign_ins.find(secret.encode(), 0.0) for secret in secrets]
    assert held[0] is None
    assert held[-1] is not None
    assert sum(item is not None for item in held) < 50


def test_wrong_codes_make_clients_wait() -> None:
    sign_ins = SignIns()
    code = sign_ins.code(0.0)
    for number in range(MOST_WRONG):
        assert sign_ins.wait_s(0.0) == 0
        assert sign_ins.exchange(f"{code}{number}", 0.0) is None
    assert 0 < sign_ins.wait_s(0.0) <= 61
    assert sign_ins.wait_s(61.0) == 0


def test_secrets_are_not_stored() -> None:
    sign_ins = SignIns()
    code = sign_ins.code(0.0)
    secret = sign_ins.exchange(sign_ins.code(0.0), 0.0)
    assert secret is not None
    stored = repr(vars(sign_ins))
    assert code not in stored
    assert secret not in stored
