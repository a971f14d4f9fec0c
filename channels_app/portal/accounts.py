"""Adapt allauth: sign-up, sign-in, second factors, and the audit log of accounts."""

from collections.abc import Mapping
from typing import Any

from allauth.account import forms as account_forms
from allauth.account import signals as account
from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.decorators import secure_admin_login
from allauth.account.stages import EmailVerificationStage
from allauth.mfa import signals as mfa
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.base import forms as mfa_forms
from allauth.mfa.totp.forms import ActivateTOTPForm
from django.conf import settings
from django.http import HttpRequest
from django.urls import Resolver404, resolve, reverse

from channels_app.models import AuditEntry
from channels_app.portal.access import principal_of
from channels_app.registry import data_encryption, teams

__all__ = ["Accounts", "SecondFactors", "SignIn", "VerifyAddress", "secure_admin_login"]
_LABELS = {
    "login": "User name or e-mail",
    "remember": "Stay signed in",
    "username": "User name",
    "email": "E-mail address",
    "oldpassword": "Current password",
    "password2": "The same password again",
    "code": "Code",
}
_GOOD_ONES = "At least ten characters, not a common password and not similar to your name."
_PASSWORDS = {
    account.password_changed: "user.change_password",
    account.password_reset: "user.reset_password",
    account.password_set: "user.set_password",
}
_ADDRESSES = {account.email_added: "email.add", account.email_removed: "email.remove"}
_FACTORS = {
    mfa.authenticator_added: "second_factor.add",
    mfa.authenticator_removed: "second_factor.remove",
    mfa.authenticator_reset: "second_factor.reset",
}


class Accounts(DefaultAccountAdapter):
    """Decide who may sign up, and where people go after signing in."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """True for everybody if the operator allows it, else only through an invitation's link."""
        if settings.SIGNUP == "open":
            return True
        token = _invitation(request)
        return token is not None and teams.lets_sign_up(token)

    def save_user(self, request: HttpRequest, user: Any, form: Any, commit: bool = True) -> Any:
        """Create the account, and record the invitation it came from."""
        saved = super().save_user(request, user, form, commit)
        if token := _invitation(request):
            teams.note_sign_up(token, principal=principal_of(saved))
        return saved

    def get_login_redirect_url(self, request: HttpRequest) -> str:
        """Redirect operators without a team to the console, everybody else to their team."""
        user: Any = request.user
        if user.is_staff and not user.memberships.exists():
            return reverse("admin:index")
        return reverse("portal:choose")

    def get_login_stages(self) -> list[str]:
        """Replace allauth's email verification by our own stage."""
        ours = f"{VerifyAddress.__module__}.{VerifyAddress.__name__}"
        stages = super().get_login_stages()
        return [ours if stage.endswith("EmailVerificationStage") else stage for stage in stages]


class _PlainMessages:
    """Mixin for allauth's forms: our labels, and no placeholders that repeat them."""

    fields: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            field.label = _LABELS.get(name, str(field.label).capitalize())
            field.widget.attrs.pop("placeholder", None)
        if "password1" in self.fields:
            self.fields["password1"].help_text = _GOOD_ONES


class SignIn(_PlainMessages, account_forms.LoginForm):
    """Sign in, to the console and the portal."""


class SignUp(_PlainMessages, account_forms.SignupForm):
    """Create an account."""


class EmailForm(_PlainMessages, account_forms.AddEmailForm):
    """Add an e-mail address."""


class Password(_PlainMessages, account_forms.ChangePasswordForm):
    """Change the password."""


class Forgotten(_PlainMessages, account_forms.ResetPasswordForm):
    """Request a link for a new password."""


class NewPassword(_PlainMessages, account_forms.ResetPasswordKeyForm):
    """Set a new password after following that link."""


class Again(_PlainMessages, account_forms.ReauthenticateForm):
    """Confirm with the password."""


class Code(_PlainMessages, mfa_forms.AuthenticateForm):
    """Sign in with the second factor."""


class CodeAgain(_PlainMessages, mfa_forms.ReauthenticateForm):
    """Confirm with the second factor."""


class FirstCode(_PlainMessages, ActivateTOTPForm):
    """Prove that an authenticator app has the secret."""


class VerifyAddress(EmailVerificationStage):
    """Skip verification for operators: they are created by hand, and may have to repair mail."""

    def handle(self) -> Any:
        """Require a verified address, unless the user is an operator."""
        user = self.login.user
        return (None, True) if user is not None and user.is_staff else super().handle()


class SecondFactors(DefaultMFAAdapter):
    """Encrypt the secrets of second factors, like all stored credentials."""

    def encrypt(self, text: str) -> str:
        """The secret as stored."""
        return data_encryption.encrypt_second_factor(text)

    def decrypt(self, encrypted_text: str) -> str:
        """Undo ``encrypt``."""
        return data_encryption.decrypt_second_factor(encrypted_text)


def _main_address(
    request: HttpRequest, user: Any, from_email_address: Any, to_email_address: Any, **more: Any
) -> None:
    before = {"email": from_email_address.email if from_email_address else None}
    after = {"email": to_email_address.email}
    _record(request, user, "user.change_email", f"user:{user.get_username()}", before, after)


account.email_changed.connect(_main_address)


def _password(signal: Any, request: HttpRequest, user: Any, **more: Any) -> None:
    _record(request, user, _PASSWORDS[signal], f"user:{user.get_username()}")


def _address(signal: Any, request: HttpRequest, user: Any, email_address: Any, **more: Any) -> None:
    _record(request, user, _ADDRESSES[signal], f"email:{email_address.email}")


def _factor(signal: Any, request: HttpRequest, user: Any, authenticator: Any, **more: Any) -> None:
    target = f"second_factor:{authenticator.user}/{authenticator.type}"
    _record(request, user, _FACTORS[signal], target)


for _signals, _receiver in ((_PASSWORDS, _password), (_ADDRESSES, _address), (_FACTORS, _factor)):
    for _signal in _signals:
        _signal.connect(_receiver)


def _invitation(request: HttpRequest) -> str | None:
    """The secret of the invitation whose link the user follows and returns to."""
    try:
        match = resolve(request.POST.get("next") or request.GET.get("next") or "")
    except Resolver404:
        return None
    return match.kwargs["token"] if match.view_name == "portal:join" else None


def _record(
    request: HttpRequest,
    user: Any,
    action: str,
    target: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    # Somebody who follows a link from an e-mail is not signed in.
    person: Any = request.user if request.user.is_authenticated else user
    AuditEntry.record(principal_of(person).actor, action, target, before=before, after=after)
