# shellcheck shell=bash
# What the scripts of tools/ share. Sourced; they stand in the root of the tree then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/versions.env
. tools/versions.env

ME=$(basename "$0")
CLUSTER=${CLUSTER:-gracectl}
KUBERNETES=${KUBERNETES:-$KIND_KUBERNETES}
NODES=${NODES:-10}
CONTEXT=kind-$CLUSTER

say() { printf '%s: %s\n' "$ME" "$*"; }
fail() { # state; remedy
    printf '%s: %s\n' "$ME" "$*" >&2
    exit 2
}

need() { # programs…: says all that are missing, and where to get each, before anything is done
    local program missing=0
    for program in "$@"; do
        command -v "$program" > /dev/null && continue
        missing=1
        printf '%s: %s: not on PATH; get it from ' "$ME" "$program" >&2
        case $program in
            docker) echo https://docs.docker.com/engine/install >&2 ;;
            kind) echo "https://kind.sigs.k8s.io/docs/user/quick-start#installation, or: go install sigs.k8s.io/kind@$KIND_VERSION" >&2 ;;
            kubectl) echo https://kubernetes.io/docs/tasks/tools >&2 ;;
            helm) echo https://helm.sh/docs/intro/install, or: make helm >&2 ;;
            *) echo "your system's packages" >&2 ;;
        esac
    done
    [ "$missing" = 0 ] || exit 2
}

need_docker() { # its daemon, too
    docker info > /dev/null 2>&1 || fail 'docker: its daemon does not answer; start it, or give your user the right to it (docker info says more)'
}

node_image() { # the node image of $KUBERNETES
    local name=KIND_NODE_${KUBERNETES//./_}
    [ -n "${!name:-}" ] ||
        fail "KUBERNETES=$KUBERNETES: no node image is pinned; take one of $(sed -n 's/^KIND_NODE_\([0-9]*\)_\([0-9]*\)=.*/\1.\2/p' tools/versions.env | paste -sd' ' -)"
    echo "${!name}"
}

is_number() { # name value
    case $2 in '' | *[!0-9]* | 0*) fail "$1=$2: not a number from 1 on" ;; esac
}

k() { kubectl --context "$CONTEXT" "$@"; }

# Objects are applied by the server: a dashboard is too long for the annotation that kubectl would write.
apply() { k apply --server-side --force-conflicts --field-manager gracectl-kind "$@" > /dev/null; }

fill() { # file NAME=VALUE…: prints it with each ${NAME} replaced, and with the images of versions.env
    local file=$1 pair text place value
    shift
    text=$(< "$file")
    for pair in "$@" "KWOK_IMAGE=$KWOK_IMAGE" "JAEGER_IMAGE=$JAEGER_IMAGE" "PROMETHEUS_IMAGE=$PROMETHEUS_IMAGE" "GRAFANA_IMAGE=$GRAFANA_IMAGE"; do
        place="\${${pair%%=*}}" value=${pair#*=}
        text=${text//"$place"/$value}
    done
    printf '%s\n' "$text"
}

configmap() { # namespace name KEY=FILE…
    local namespace=$1 name=$2 each files=()
    shift 2
    for each in "$@"; do files+=("--from-file=$each"); done
    k create configmap "$name" --namespace "$namespace" "${files[@]}" --dry-run=client -o yaml | apply -f -
}

has_cluster() { kind get clusters 2> /dev/null | grep -qxF "$CLUSTER"; }

create_cluster() { # options of kind create cluster…
    local image
    image=$(node_image)
    say "cluster $CLUSTER: creating it, ${image%@*}"
    kind create cluster --name "$CLUSTER" --image "$image" --wait 180s "$@"
}

start_kwok() { # milliseconds until a pod is Ready, and until it has stopped
    local config
    say "kwok: ${KWOK_IMAGE%@*}"
    config=$(mktemp)
    fill tools/kind/kwok-config.yaml "READY_MS=$1" "STOP_MS=$2" > "$config"
    configmap kube-system kwok "kwok-config.yaml=$config"
    # It reads its configuration once: another one starts it anew, and nothing else does.
    fill tools/kind/kwok.yaml "CONFIG=$(cksum < "$config" | cut -d ' ' -f 1)" | apply -f -
    rm "$config"
    k -n kube-system rollout status deployment/kwok --timeout 5m > /dev/null
}

fake_nodes() { # prints the manifests of those of so many that are not there: one that is may be marked by gracectl
    local number there zones=(a b c)
    there=$(k get nodes --selector pool=fake -o name)
    for ((number = 1; number <= $1; number++)); do
        grep -qxF "node/fake-$number" <<< "$there" && continue
        echo ---
        fill tools/kind/node.yaml "NODE=fake-$number" "ZONE=${zones[(number - 1) % 3]}"
    done
}
