//go:build tools

// Package tools pins helm: the lab builds the command from the versions of this module's go.mod and go.sum.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
