#!/bin/sh
# Prints the licences of Go, of all modules in the program for $GOOS and $GOARCH, and of the packages in its web page. They must be
# distributed with the program.
set -eu
export LC_ALL=C CGO_ENABLED=0 # the program is built without cgo, and so without the modules that need it
{
	echo "Go $(go env GOVERSION) $(go env GOROOT)"
	go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/ipwitness | sort -u
} | while read -r module version dir; do
	found=
	for file in "$dir"/LICEN[CS]E* "$dir"/License* "$dir"/COPYING* "$dir"/NOTICE*; do
		[ -f "$file" ] || continue
		found=yes
		printf '%s\n\n' "======== $module $version: ${file##*/}"
		cat "$file"
		echo
	done
	[ "$found" ] || { echo "$module has no licence" >&2; exit 1; }
done
cat aggregator/web/dist/licences.txt # of the npm packages in the web page
