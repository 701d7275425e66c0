// What `lab.build` takes KEDA from: its own go.mod and go.sum rule its dependencies, go.sum here rules itself.
module poolkeeper.dev/keda

go 1.26.0

require github.com/kedacore/keda/v2 v2.21.0
