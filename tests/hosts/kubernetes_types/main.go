// Reads manifests as an API server does, strictly: an unknown field, a field that is there twice or
// one of another type is an error. kubernetes_types FILE...: "ok KIND" or "bad: why" a document.
package main

import (
	"fmt"
	"os"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

func main() {
	scheme := runtime.NewScheme()
	must(batchv1.AddToScheme(scheme))
	must(corev1.AddToScheme(scheme))
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()

	code := 0
	for _, file := range os.Args[1:] {
		text, err := os.ReadFile(file)
		must(err)
		for _, document := range strings.Split(string(text), "\n---\n") {
			_, kind, err := decoder.Decode([]byte(document), nil, nil)
			if err != nil {
				fmt.Println("bad:", err)
				code = 1
				continue
			}
			fmt.Println("ok", kind.Kind)
		}
	}
	os.Exit(code)
}
