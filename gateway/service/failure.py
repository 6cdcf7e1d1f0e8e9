"""What keeps an operator's order about the service from being carried out."""


class ServiceError(Exception):
    """The text is a sentence that says what, why and what to do."""


class ServiceMisuseError(ServiceError):
    """The order can't be meant that way."""
