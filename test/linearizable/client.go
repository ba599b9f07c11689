package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

const (
	namespace = "default"
	timeout   = 3 * time.Second       // of a request; its effect is unknown then
	pause     = 30 * time.Millisecond // between the requests of a client
)

// A client makes requests one after the other and stores each in its file.
type client struct {
	name string
	api  *rest.RESTClient
	file *os.File
	made int
}

func write(folder string) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	config.GroupVersion, config.APIPath = &v1.SchemeGroupVersion, "/api"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.QPS = -1
	api, err := rest.RESTClientFor(config)
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(folder, name+".history"), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	c := client{name: name, api: api, file: file}
	for {
		if _, err := os.Stat(filepath.Join(folder, "stop")); err == nil {
			fmt.Println("requests:", c.made)
			return nil
		}
		if err := c.once(keys[rand.IntN(len(keys))]); err != nil {
			return err
		}
		time.Sleep(pause)
	}
}

// once reads, writes, or reads and swaps the value of a key.
func (c *client) once(key string) error {
	if rand.IntN(2) == 0 {
		return c.put(operation{Kind: "write", Key: key}, "")
	}
	seen, err := c.get(key)
	if err != nil || seen == nil || rand.IntN(2) == 0 {
		return err
	}
	return c.put(operation{Kind: "swap", Key: key, Expected: seen.Data["value"]}, seen.ResourceVersion)
}

// get returns nil where there is no answer. An object that is not found has no value.
func (c *client) get(key string) (*v1.ConfigMap, error) {
	o := operation{Kind: "read", Key: key}
	if err := c.call(&o); err != nil {
		return nil, err
	}
	var found v1.ConfigMap
	if err := c.request(c.api.Get(), key).Into(&found); err != nil && !errors.IsNotFound(err) {
		return nil, nil
	}
	o.Value = found.Data["value"]
	return &found, c.returned(&o)
}

// put replaces whatever there is, or with a version only that version. No value is
// written twice.
func (c *client) put(o operation, version string) error {
	o.Value = fmt.Sprintf("%s-%d", c.name, c.made)
	if err := c.call(&o); err != nil {
		return err
	}
	var object v1.ConfigMap
	object.APIVersion, object.Kind = "v1", "ConfigMap"
	object.Name, object.ResourceVersion = o.Key, version
	object.Data = map[string]string{"value": o.Value}
	err := c.request(c.api.Put().Body(&object), o.Key).Error()
	o.Conflict = version != "" && errors.IsConflict(err)
	if err != nil && !o.Conflict {
		return nil
	}
	return c.returned(&o)
}

// request makes one request. The library must not repeat it: the second write
// of one operation would look like a write out of nowhere.
func (c *client) request(r *rest.Request, key string) rest.Result {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return r.Namespace(namespace).Resource("configmaps").Name(key).MaxRetries(0).Do(ctx)
}

func (c *client) call(o *operation) error {
	o.Client, o.Number, o.Called = c.name, c.made, now()
	c.made++
	return json.NewEncoder(c.file).Encode(o)
}

func (c *client) returned(o *operation) error {
	o.Returned = now()
	return json.NewEncoder(c.file).Encode(o)
}
