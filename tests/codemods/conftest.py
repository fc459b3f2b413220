"""`pytest tests/codemods --regen` writes the expected side of the fixtures anew."""


def pytest_addoption(parser):
    parser.addoption(
        "--regen",
        action="store_true",
        help="rewrite tests/codemods/fixtures/**/*.out.py from what dynfix does now",
    )
