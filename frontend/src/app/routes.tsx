import { lazy, type ReactNode, Suspense, useEffect } from "react";
import { Redirect, Route, Switch, useLocation, useParams } from "wouter";
import type { Me } from "@/shared/api/types";
import { hasChosenLocale, useI18n } from "@/shared/i18n";
import { LiveProvider } from "@/shared/live/LiveProvider";
import { OrgProvider, Requires, useMe } from "@/shared/session";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Skeleton } from "@/shared/ui/Loaded";
import { SignInPage } from "@/features/auth/SignInPage";
import { homeOf, remember } from "./lastOrg";
import { NoOrganisation, NotFound } from "./Plain";
import { Shell } from "./Shell";

const InvitePage = lazy(() => import("@/features/auth/InvitePage"));
const AccountPage = lazy(() => import("@/features/auth/AccountPage"));
const OverviewPage = lazy(() => import("@/features/start/OverviewPage"));
const ModelsPage = lazy(() => import("@/features/models/ModelsPage"));
const DeployPage = lazy(() => import("@/features/deploy/DeployPage"));
const DeploymentsPage = lazy(() => import("@/features/deployments/DeploymentsPage"));
const DeploymentPage = lazy(() => import("@/features/deployments/DeploymentPage"));
const KeysPage = lazy(() => import("@/features/keys/KeysPage"));
const UsagePage = lazy(() => import("@/features/usage/UsagePage"));
const StatementsPage = lazy(() => import("@/features/billing/StatementsPage"));
const StatementPage = lazy(() => import("@/features/billing/StatementPage"));
const BudgetsPage = lazy(() => import("@/features/budgets/BudgetsPage"));
const MembersPage = lazy(() => import("@/features/members/MembersPage"));

export function Routes() {
  return (
    <Suspense fallback={<Waiting />}>
      <Switch>
        <Route path="/invite/:token" component={InvitePage} />
        <Route>
          <SignedIn>{(me) => <Inside me={me} />}</SignedIn>
        </Route>
      </Switch>
    </Suspense>
  );
}

function Waiting() {
  return (
    <div className="signin">
      <div className="signin-box">
        <Skeleton rows={3} />
      </div>
    </div>
  );
}

/** One question decides: is anybody signed in? If not, the sign-in page stands at whatever address was asked for. */
function SignedIn({ children }: { children: (me: Me) => ReactNode }) {
  const me = useMe();
  const { setLocale } = useI18n();
  const language = me.data?.language;
  useEffect(() => {
    // English is every account's first value and so no choice: the browser's language then stands.
    if (language === "zh-hans" && !hasChosenLocale()) setLocale("zh");
  }, [language, setLocale]);
  if (me.data) return children(me.data);
  if (me.data === null) return <SignInPage />;
  if (me.isError) {
    return (
      <main className="signin">
        <div className="signin-box">
          <h1>Berth</h1>
          <ErrorNotice error={me.error} onRetry={() => void me.refetch()} />
        </div>
      </main>
    );
  }
  return <Waiting />;
}

function Inside({ me }: { me: Me }) {
  const first = homeOf(me);
  const home = first ? `/o/${first.org.slug}` : "/account";
  return (
    <Switch>
      <Route path="/account">
        <Beside me={me}><AccountPage me={me} /></Beside>
      </Route>
      <Route path="/o/:org/*?">
        <Organisation me={me} />
      </Route>
      <Route path="/">
        {me.memberships.length > 0 ? <Redirect to={home} replace /> : <Shell me={me} current={null}><NoOrganisation /></Shell>}
      </Route>
      <Route path="/signin">
        <Redirect to={home} replace />
      </Route>
      <Route>
        <Shell me={me} current={null}><NotFound /></Shell>
      </Route>
    </Switch>
  );
}

/** A page that belongs to no organisation, with the navigation of the one that was open last. */
function Beside({ me, children }: { me: Me; children: ReactNode }) {
  const membership = homeOf(me);
  if (!membership) return <Shell me={me} current={null}>{children}</Shell>;
  return (
    <LiveProvider org={membership.org.slug}>
      <Shell me={me} current={membership}>{children}</Shell>
    </LiveProvider>
  );
}

function Organisation({ me }: { me: Me }) {
  const { org } = useParams<{ org: string }>();
  const [location] = useLocation();
  const membership = me.memberships.find((each) => each.org.slug === org);
  useEffect(() => {
    if (membership) remember(membership.org.slug);
  }, [membership]);
  // An organisation of others looks exactly like one that does not exist.
  if (!membership) return <Shell me={me} current={null}><NotFound /></Shell>;
  return (
    <OrgProvider me={me} membership={membership} key={org}>
      <LiveProvider org={org}>
        <Shell me={me} current={membership}>
          <Suspense fallback={<Skeleton rows={5} />} key={location.split("/")[3] ?? ""}>
            <OrgRoutes />
          </Suspense>
        </Shell>
      </LiveProvider>
    </OrgProvider>
  );
}

function OrgRoutes() {
  return (
    <Switch>
      <Route path="/o/:org"><OverviewPage /></Route>
      <Route path="/o/:org/models"><Requires action="models.read"><ModelsPage /></Requires></Route>
      <Route path="/o/:org/deploy"><Requires action="deployments.write"><DeployPage /></Requires></Route>
      <Route path="/o/:org/deployments"><Requires action="deployments.read"><DeploymentsPage /></Requires></Route>
      <Route path="/o/:org/deployments/:name/:tab?">
        <Requires action="deployments.read"><DeploymentPage /></Requires>
      </Route>
      <Route path="/o/:org/keys"><Requires action="keys.read_own"><KeysPage /></Requires></Route>
      <Route path="/o/:org/usage"><Requires action="usage.read"><UsagePage /></Requires></Route>
      <Route path="/o/:org/budgets"><Requires action="budgets.read"><BudgetsPage /></Requires></Route>
      <Route path="/o/:org/statements"><Requires action="billing.read"><StatementsPage /></Requires></Route>
      <Route path="/o/:org/statements/:period"><Requires action="billing.read"><StatementPage /></Requires></Route>
      <Route path="/o/:org/members"><Requires action="members.read"><MembersPage /></Requires></Route>
      <Route><NotFound /></Route>
    </Switch>
  );
}
