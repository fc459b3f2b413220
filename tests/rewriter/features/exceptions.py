"""Language features: assertions and exceptions."""
# ruff: noqa
# fmt: off

COUNT = 0


def said(value, log):
    log.append(value)
    return value


def assertions(log):
    x = 3
    assert x
    assert x > 2 and not x == 5, said("unused", log)
    assert x == 4, f"x is {said(x, log)}"


def assertion_bare(log):
    assert not COUNT == 0


def assertion_name_is_shadowed(log):
    AssertionError = KeyError
    assert False, "real"


def try_all(log):
    def go(what):
        try:
            log.append("try")
            if what == 1:
                raise ValueError("one")
            if what == 2:
                {}["k"]
            if what == 3:
                return "returned"
        except ValueError as error:
            log.append(str(error))
            return "caught"
        except (KeyError, IndexError) as error:
            log.append(repr(error))
        else:
            log.append("else")
        finally:
            log.append("finally")
        return "end"

    return [go(i) for i in range(4)]


def try_expression_in_handler(log):
    def kinds():
        log.append("asked")
        return (ZeroDivisionError, KeyError)

    try:
        1 / 0
    except kinds() as error:
        return str(error)


def raise_from(log):
    try:
        try:
            [][1]
        except IndexError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        log.append((repr(error.__cause__), error.__suppress_context__))
        raise


class Counted(Exception):
    made = 0

    def __init__(self):
        Counted.made += 1
        super().__init__(f"made {Counted.made}")


def raise_a_class(log):
    Counted.made = 0
    try:
        raise Counted from Counted
    except Counted as error:
        log.append((str(error), str(error.__cause__)))
    raise Counted


def raise_what_is_none(log):
    raise log


def raise_again(log):
    try:
        int("x")
    except ValueError:
        raise


def finally_overrides(log):
    for i in range(3):
        try:
            1 / i
        except ZeroDivisionError:
            continue
        finally:
            log.append(i)
    return "out"
