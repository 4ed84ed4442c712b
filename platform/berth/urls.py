"""Routes of the control plane: the management API under /api/v1/, sign-in beside it, and the dashboard for all else."""

from django.urls import include, path, re_path

from berth.web.frontend import dashboard

api = [
    path("", include("berth.web.api")),
    path("", include("berth.orgs.api")),
    path("", include("berth.keys.api")),
    path("", include("berth.catalog.api")),
    path("", include("berth.catalog.conversion.api")),
    path("", include("berth.deployments.api")),
    path("", include("berth.metering.api")),
    path("", include("berth.privacy.api")),
    path("", include("berth.billing.api")),
    path("", include("berth.billing.budgets_api")),
    path("", include("berth.publishing.api")),
]

urlpatterns = [
    path("api/v1/", include(api)),
    path("api/v1/auth/", include("berth.orgs.signin")),
    re_path(r"^(?!api/|assets/).*$", dashboard),
]

handler400 = "berth.web.errors.bad_request"
handler403 = "berth.web.errors.permission_denied"
handler404 = "berth.web.errors.not_found"
handler500 = "berth.web.errors.server_error"
