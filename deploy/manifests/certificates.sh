#!/bin/sh
# Creates a CA and the aggregator's certificate with openssl, and stores them in the cluster with
# kubectl: Secret ipwitness-tls, and ConfigMap ipwitness-ca, with which agents and users verify the
# certificate. The CA's key is deleted. Run it again to renew the certificates before they expire
# (agents and aggregator load them without a restart).
#
#   deploy/manifests/certificates.sh [DAYS] [NAME…]
#
# DAYS is their validity (default 1095); NAMEs are additional DNS names of the aggregator. With
# MUTUAL=1 in the environment, it also creates Secret ipwitness-agent-tls, the client certificate of
# the agents (the chart's tls.mutual).
set -eu
days=${1:-1095}
[ $# = 0 ] || shift
namespace=${NAMESPACE:-ipwitness}
name=ipwitness
names="DNS:$name.$namespace.svc,DNS:$name.$namespace.svc.cluster.local,DNS:$name.$namespace,DNS:$name,DNS:$name-replicas.$namespace.svc,DNS:$name-replicas.$namespace.svc.cluster.local,DNS:*.$name-replicas.$namespace.svc,DNS:*.$name-replicas.$namespace.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:::1"
for n; do names="$names,DNS:$n"; done

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
umask 077
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days "$days" \
	-subj "/CN=$(printf %.64s "ipwitness authority of $namespace")" -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
sign() { # FILE SUBJECT EXTENSIONS
	printf "keyUsage=critical,digitalSignature\nbasicConstraints=critical,CA:FALSE\n$3\n" >extensions
	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
	openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile extensions -out "$1.crt" 2>/dev/null
}
sign tls "/CN=$name" "extendedKeyUsage=serverAuth\nsubjectAltName=$names"
[ -z "${MUTUAL-}" ] || sign agent "/CN=$name-agent" extendedKeyUsage=clientAuth

# Clients get the new CA before the certificate changes, so that none knows only the old one.
old=$(kubectl --namespace "$namespace" get configmap "$name-ca" --ignore-not-found --output 'jsonpath={.data.ca\.crt}' |
	awk '/BEGIN/ { n++ } n == 1') # the newest one
{ cat ca.crt; [ -z "$old" ] || printf '%s\n' "$old"; } >bundle.crt
put() { kubectl "$@" --namespace "$namespace" --dry-run=client --output yaml | kubectl apply --server-side --force-conflicts --filename -; }
put create configmap "$name-ca" --from-file=ca.crt=bundle.crt
put create secret tls "$name-tls" --cert=tls.crt --key=tls.key
[ -z "${MUTUAL-}" ] || put create secret tls "$name-agent-tls" --cert=agent.crt --key=agent.key
