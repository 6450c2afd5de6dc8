#!/bin/sh
# Makes an authority and the aggregator's certificate with openssl, and puts them into
# the cluster with kubectl: Secret ipwitness-tls, and ConfigMap ipwitness-ca, by which
# agents and people verify it. The authority's key is thrown away. Run it again before
# the end to have new ones (agents and aggregator read them without a restart).
#
#   deploy/manifests/certificates.sh [DAYS] [NAME…]
#
# DAYS is how long they are valid, 1095 by default; NAMEs are more names that people
# call the aggregator by. With MUTUAL=1 in the environment it makes Secret
# ipwitness-agent-tls, too, which agents show (the chart's tls.mutual).
set -eu
days=${1:-1095}
[ $# = 0 ] || shift
namespace=${NAMESPACE:-ipwitness}
name=ipwitness
names="DNS:$name.$namespace.svc,DNS:$name.$namespace.svc.cluster.local,DNS:$name.$namespace,DNS:$name,DNS:localhost,IP:127.0.0.1,IP:::1"
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

# Who has the old authority only is told of the new one before the certificate changes.
old=$(kubectl --namespace "$namespace" get configmap "$name-ca" --ignore-not-found --output 'jsonpath={.data.ca\.crt}' |
	awk '/BEGIN/ { n++ } n == 1') # the newest one
{ cat ca.crt; [ -z "$old" ] || printf '%s\n' "$old"; } >bundle.crt
put() { kubectl "$@" --namespace "$namespace" --dry-run=client --output yaml | kubectl apply --server-side --force-conflicts --filename -; }
put create configmap "$name-ca" --from-file=ca.crt=bundle.crt
put create secret tls "$name-tls" --cert=tls.crt --key=tls.key
[ -z "${MUTUAL-}" ] || put create secret tls "$name-agent-tls" --cert=agent.crt --key=agent.key
