// Makes tests/sim/oracles/go-objects.json.gz: objects of built-in kinds with every field filled (and, in a second round,
// with many left out), each as Go's own types write it in JSON and in protobuf.
//
//	go run . | gzip -9n > ../../tests/sim/oracles/go-objects.json.gz
package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
)

// Kinds by group. What holds a pod template is large: of these only the Deployment.
var wanted = map[string]bool{
	"/Binding": true, "/ConfigMap": true, "/DeleteOptions": true, "/Event": true, "/Namespace": true, "/Node": true,
	"/PersistentVolume": true, "/PersistentVolumeClaim": true, "/Pod": true, "/Secret": true, "/Service": true,
	"/ServiceAccount": true, "/Status": true, "admissionregistration.k8s.io/ValidatingWebhookConfiguration": true,
	"apiextensions.k8s.io/CustomResourceDefinition": true, "apps/ControllerRevision": true, "apps/Deployment": true,
	"authentication.k8s.io/TokenRequest": true, "authorization.k8s.io/SelfSubjectAccessReview": true,
	"autoscaling/Scale": true, "coordination.k8s.io/Lease": true, "events.k8s.io/Event": true,
	"policy/Eviction": true, "policy/PodDisruptionBudget": true, "rbac.authorization.k8s.io/ClusterRole": true,
	"scheduling.k8s.io/PriorityClass": true, "storage.k8s.io/CSINode": true, "storage.k8s.io/VolumeAttachment": true,
}

var n int
var sparse bool

func fill(v reflect.Value, depth int) {
	n++
	switch x := v.Addr().Interface().(type) {
	case *metav1.Time:
		*x = metav1.NewTime(time.Unix(1700000000+int64(n), 0).UTC())
		return
	case *metav1.MicroTime:
		*x = metav1.NewMicroTime(time.Unix(1700000000+int64(n), int64(n)*1000).UTC())
		return
	case *metav1.Duration:
		x.Duration = time.Duration(n) * time.Second
		return
	case *resource.Quantity:
		*x = resource.MustParse([]string{"100m", "2Gi", "3", "1500Mi", "7k"}[n%5])
		return
	case *intstr.IntOrString:
		if n%2 == 0 {
			*x = intstr.FromInt32(int32(n) - 50)
		} else {
			*x = intstr.FromString(fmt.Sprintf("%d%%", n%100))
		}
		return
	case *runtime.RawExtension:
		x.Raw = []byte(fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","n":%d}`, n))
		return
	case *metav1.FieldsV1:
		x.Raw = []byte(fmt.Sprintf(`{"f:a":{"f:%d":{}}}`, n))
		return
	case *apiext.JSON:
		x.Raw = []byte(fmt.Sprintf(`{"x":[%d,null,"s"]}`, n))
		return
	case *apiext.JSONSchemaPropsOrBool:
		x.Allows = n%2 == 0
		if n%3 == 0 && depth < 6 {
			x.Allows = true
			x.Schema = &apiext.JSONSchemaProps{Type: "string"}
		}
		return
	case *apiext.JSONSchemaPropsOrArray:
		x.Schema = &apiext.JSONSchemaProps{Type: "integer"}
		return
	case *apiext.JSONSchemaPropsOrStringArray:
		x.Property = []string{"p", "q"}
		return
	case *metav1.TypeMeta:
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(n%4 != 0)
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(int64(n%1000) - 20)
	case reflect.Float64:
		v.SetFloat(float64(n) / 4)
	case reflect.String:
		if n%9 != 0 {
			v.SetString(fmt.Sprintf("s%d-é", n))
		}
	case reflect.Ptr:
		if depth > 9 || (sparse && n%3 == 0) {
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte{0, 1, 2, byte(n), 255})
			return
		}
		if depth > 9 || (sparse && n%2 == 0) {
			return
		}
		k := 1 + n%2
		s := reflect.MakeSlice(v.Type(), k, k)
		for i := 0; i < k; i++ {
			fill(s.Index(i), depth+1)
		}
		v.Set(s)
	case reflect.Map:
		if depth > 9 || (sparse && n%2 == 1) {
			return
		}
		m := reflect.MakeMap(v.Type())
		key := reflect.New(v.Type().Key()).Elem()
		key.SetString(fmt.Sprintf("k%d", n))
		val := reflect.New(v.Type().Elem()).Elem()
		fill(val, depth+1)
		m.SetMapIndex(key, val)
		v.Set(m)
	case reflect.Struct:
		if v.Type().Name() == "JSONSchemaProps" && depth > 5 {
			return
		}
		for i := 0; i < v.NumField(); i++ {
			f := v.Type().Field(i)
			if f.PkgPath != "" || (strings.HasPrefix(f.Tag.Get("json"), "-")) {
				continue
			}
			if sparse && n%5 == 0 && f.Type.Kind() != reflect.Struct {
				n++
				continue
			}
			fill(v.Field(i), depth+1)
		}
	case reflect.Interface:
	default:
		panic(v.Type().String())
	}
}

func main() {
	apiext.AddToScheme(scheme.Scheme)
	ser := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	var out []map[string]interface{}
	var gvks []schema.GroupVersionKind
	for gvk := range scheme.Scheme.AllKnownTypes() {
		gvks = append(gvks, gvk)
	}
	sort.Slice(gvks, func(i, j int) bool { return gvks[i].String() < gvks[j].String() })
	for _, gvk := range gvks {
		if !wanted[gvk.Group+"/"+gvk.Kind] || gvk.Version != "v1" {
			continue
		}
		for round := 0; round < 2; round++ {
			sparse = round == 1
			o, err := scheme.Scheme.New(gvk)
			if err != nil {
				continue
			}
			fill(reflect.ValueOf(o).Elem(), 0)
			o.GetObjectKind().SetGroupVersionKind(gvk)
			j, err := json.Marshal(o)
			if err != nil {
				fmt.Fprintln(os.Stderr, gvk, err)
				continue
			}
			var b bytes.Buffer
			if err := ser.Encode(o, &b); err != nil {
				fmt.Fprintln(os.Stderr, gvk, err)
				continue
			}
			out = append(out, map[string]interface{}{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind, "json": json.RawMessage(j), "protobuf": base64.StdEncoding.EncodeToString(b.Bytes())})
		}
	}
	json.NewEncoder(os.Stdout).Encode(out)
}
