"""What went wrong with a store, in one line for people."""

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

# Where clouds keep the credentials of a machine's role; asked only when no others are given.
_ROLE_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")


def fault_words(error: Exception) -> str:
    """What happened, in one line, with the fix where that is known."""
    # obstore appends pages of its internals; the first line has what happened.
    fault = str(error).partition("\n")[0]
    is_refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    if any(host in fault for host in _ROLE_HOSTS):
        fault = f"no credentials were found, and this machine has no role ({fault})"
    elif not is_refused:
        return fault
    return (
        f"{fault}; give credentials that may read and write there: for s3:// AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN with temporary ones, AWS_REGION, "
        "AWS_ENDPOINT_URL), for gs:// GOOGLE_SERVICE_ACCOUNT, for az:// AZURE_STORAGE_ACCOUNT_KEY"
    )
