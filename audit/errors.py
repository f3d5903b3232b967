"""The one base of every error that kvwitness raises on purpose."""


class KvwitnessError(Exception):
    """An expected failure, told to a person: what happened, and what to do about it.

    `message` says what is wrong and where; `advice` (may be empty) says what to do next. The command line prints
    both and exits with status 2.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}\n{self.advice}" if self.advice else self.message
