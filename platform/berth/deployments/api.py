"""Routes of plans and deployments."""

from __future__ import annotations

from typing import Any, cast

from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from berth.compute.registry import default_provider
from berth.deployments import better, live_api, proposals, rollout_api, scaling_api, selectors, services
from berth.deployments.models import Deployment
from berth.deployments.plan_serializers import BetterPlanOut, PlanIn, ProposalOut, SurveyIn, SurveyOut
from berth.deployments.serializers import (
    ChangeIn,
    DeployIn,
    DeploymentOut,
    EventOut,
    LogPageOut,
    LogQuery,
    RevisionOut,
    instant,
)
from berth.orgs.idempotency import idempotent
from berth.orgs.models import User
from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from berth.web.pagination import page, page_of
from berth.web.serializers import NoBody, PageQuery, read_body, read_query


class PlansView(OrgView):
    actions = {"POST": Action.DEPLOYMENTS_WRITE}

    @extend_schema(operation_id="plan", request=PlanIn, responses=ProposalOut)
    def post(self, request: Request, org: str) -> Response:
        """What a deployment would run, why, why not the rest, and what would help when nothing fits. Changes nothing."""
        return Response(proposals.propose(self.org, **read_body(PlanIn, request)))


class SurveyView(OrgView):
    actions = {"POST": Action.DEPLOYMENTS_WRITE}

    @extend_schema(operation_id="plan_anywhere", request=SurveyIn, responses=SurveyOut)
    def post(self, request: Request, org: str) -> Response:
        """What it would take to serve a demand in people's words, on any hardware: also on what is not here. Changes nothing."""
        return Response(proposals.plan_anywhere(self.org, **read_body(SurveyIn, request)))


class DeploymentsView(OrgView):
    actions = {"GET": Action.DEPLOYMENTS_READ, "POST": Action.DEPLOYMENTS_WRITE}

    @extend_schema(operation_id="list_deployments", responses=page_of(DeploymentOut), parameters=[PageQuery])
    def get(self, request: Request, org: str) -> Response:
        return page(request, selectors.deployments_of(self.org), DeploymentOut)

    @extend_schema(operation_id="deploy", request=DeployIn, responses={201: DeploymentOut})
    @idempotent
    def post(self, request: Request, org: str) -> Response:
        """Plans and deploys. Answers at once; the deployment starts by itself and tells its progress as events."""
        made = services.deploy(self.org, _user(request), **read_body(DeployIn, request))
        return Response(_shown(self, made), status=201)


class DeploymentView(OrgView):
    actions = {
        "GET": Action.DEPLOYMENTS_READ,
        "PATCH": Action.DEPLOYMENTS_WRITE,
        "DELETE": Action.DEPLOYMENTS_DELETE,
    }

    @extend_schema(operation_id="get_deployment", responses=DeploymentOut)
    def get(self, request: Request, org: str, name: str) -> Response:
        return Response(DeploymentOut(selectors.get_deployment(self.org, name)).data)

    @extend_schema(operation_id="update_deployment", request=ChangeIn, responses=DeploymentOut)
    def patch(self, request: Request, org: str, name: str) -> Response:
        """Makes a new revision. The one before it serves until the new one is ready. With `replicas` alone files, engine and hardware stay
        as they are, and no replica is restarted."""
        found = selectors.get_deployment(self.org, name)
        return Response(_shown(self, services.update(found, _user(request), **read_body(ChangeIn, request))))

    @extend_schema(operation_id="delete_deployment", request=None, responses={202: DeploymentOut})
    def delete(self, request: Request, org: str, name: str) -> Response:
        """Ends it for good. It is gone from lists once its replicas have ended."""
        found = selectors.get_deployment(self.org, name)
        return Response(_shown(self, services.delete(found, _user(request))), status=202)


class BetterPlanView(OrgView):
    actions = {"GET": Action.DEPLOYMENTS_WRITE}

    @extend_schema(operation_id="better_plan", responses=BetterPlanOut)
    def get(self, request: Request, org: str, name: str) -> Response:
        """What would be planned today for what this deployment asks for, if that is another thing than what it has. Changes nothing."""
        return Response(better.better_plan(selectors.get_deployment(self.org, name)))


class PauseView(OrgView):
    actions = {"POST": Action.DEPLOYMENTS_WRITE}

    @extend_schema(operation_id="pause_deployment", request=NoBody, responses=DeploymentOut)
    def post(self, request: Request, org: str, name: str) -> Response:
        """Ends the replicas and keeps everything else. Callers are told that the deployment is paused."""
        read_body(NoBody, request)
        found = selectors.get_deployment(self.org, name)
        return Response(_shown(self, services.pause(found, _user(request))))


class ResumeView(OrgView):
    actions = {"POST": Action.DEPLOYMENTS_WRITE}

    @extend_schema(operation_id="resume_deployment", request=NoBody, responses=DeploymentOut)
    def post(self, request: Request, org: str, name: str) -> Response:
        """Runs again after a pause; tries again at once after failures."""
        read_body(NoBody, request)
        found = selectors.get_deployment(self.org, name)
        return Response(_shown(self, services.resume(found, _user(request))))


class WakeView(OrgView):
    actions = {"POST": Action.DEPLOYMENTS_WRITE}

    @extend_schema(operation_id="wake_deployment", request=NoBody, responses=DeploymentOut)
    def post(self, request: Request, org: str, name: str) -> Response:
        """Starts it if it sleeps, as the next request would."""
        read_body(NoBody, request)
        found = selectors.get_deployment(self.org, name)
        services.wake(found, _user(request))
        return Response(_shown(self, found))


class EventsView(OrgView):
    actions = {"GET": Action.DEPLOYMENTS_READ}

    @extend_schema(operation_id="list_deployment_events", responses=page_of(EventOut), parameters=[PageQuery])
    def get(self, request: Request, org: str, name: str) -> Response:
        return page(request, selectors.events_of(selectors.get_deployment(self.org, name)), EventOut)


class RevisionsView(OrgView):
    actions = {"GET": Action.DEPLOYMENTS_READ}

    @extend_schema(operation_id="list_revisions", responses=page_of(RevisionOut), parameters=[PageQuery])
    def get(self, request: Request, org: str, name: str) -> Response:
        return page(request, selectors.revisions_of(selectors.get_deployment(self.org, name)), RevisionOut)


class LogsView(OrgView):
    actions = {"GET": Action.LOGS_READ}

    @extend_schema(operation_id="read_logs", responses=LogPageOut, parameters=[LogQuery])
    def get(self, request: Request, org: str, name: str) -> Response:
        """Lines known to be free of request content; of all others only the size."""
        query = read_query(LogQuery, request)
        found = selectors.logs_of(
            selectors.get_deployment(self.org, name),
            query["replica"],
            query["after"],
            query["limit"],
            default_provider(),
        )
        lines = [
            {
                "number": line.number,
                "at": instant(line.at),
                "source": line.source,
                "text": line.text,
                "withheld": line.withheld,
            }
            for line in found.lines
        ]
        return Response({"items": lines, "next_after": found.next_after, "more": found.more})


def _user(request: Request) -> User:
    return cast(User, request.user)


def _shown(view: OrgView, deployment: Deployment) -> Any:
    return DeploymentOut(selectors.get_deployment(view.org, deployment.name)).data


_ONE = "orgs/<slug:org>/deployments/<str:name>"
urlpatterns = [
    path("orgs/<slug:org>/plans", PlansView.as_view()),
    path("orgs/<slug:org>/plans/anywhere", SurveyView.as_view()),
    path("orgs/<slug:org>/deployments", DeploymentsView.as_view()),
    path(_ONE, DeploymentView.as_view()),
    path(f"{_ONE}/plan", BetterPlanView.as_view()),
    path(f"{_ONE}/pause", PauseView.as_view()),
    path(f"{_ONE}/resume", ResumeView.as_view()),
    path(f"{_ONE}/wake", WakeView.as_view()),
    path(f"{_ONE}/events", EventsView.as_view()),
    path(f"{_ONE}/revisions", RevisionsView.as_view()),
    path(f"{_ONE}/logs", LogsView.as_view()),
    *rollout_api.urlpatterns,
    *live_api.urlpatterns,
    *scaling_api.urlpatterns,
]
