package berthd

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// pluginName is the file of the SPANK plugin.
const pluginName = "spank_berth.so"

// configless is the directory where nodes keep the files that they receive from
// slurmctld.
const configless = "/run/slurm/conf"

// scontrolLimit bounds the wait for Slurm.
const scontrolLimit = 10 * time.Second

// scontrol runs scontrol as root, which slurmctld lets change nodes, and returns its standard
// output. The error of a failed command has all that it printed.
func scontrol(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, scontrolLimit)
	defer cancel()
	command := exec.CommandContext(ctx, "scontrol", args...)
	var complaints bytes.Buffer
	command.Stderr = &complaints
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("scontrol %s: %w: %s", strings.Join(args[:min(len(args), 2)], " "), err, strings.TrimSpace(string(out)+complaints.String()))
	}
	return string(out), nil
}

// slurmConfig returns the configuration of the controller. Its file paths are paths
// on the controller's host.
func slurmConfig(ctx context.Context) (map[string]string, error) {
	out, err := scontrol(ctx, "show", "config")
	if err != nil {
		return nil, err
	}
	config := map[string]string{}
	for line := range strings.Lines(out) {
		if name, value, found := strings.Cut(line, "="); found {
			config[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return config, nil
}

// plugged checks that Slurm loads the plugin on this host. If Slurm cannot load an
// optional plugin, it reports that in a log at most, and all jobs stay in the hosts'
// network.
func plugged(ctx context.Context) error {
	config, err := slurmConfig(ctx)
	if err != nil {
		return err
	}
	stack, err := plugstack(config)
	if err != nil {
		return err
	}
	path, err := pluginOf(stack, filepath.SplitList(config["PluginDir"]))
	if err != nil {
		return err
	}
	built, err := builtFor(path)
	if err != nil {
		return err
	}
	out, err := scontrol(ctx, "--version")
	if err != nil {
		return err
	}
	if here := release(out); here != built {
		return fmt.Errorf("%s was built for Slurm %s, and this is %s, which does not load it: make spank SLURM_PREFIX=... with the headers of this one", path, built, here)
	}
	return nil
}

// plugstack returns the path of this host's plugstack.conf.
func plugstack(config map[string]string) (string, error) {
	candidates := []string{config["PlugStackConfig"], filepath.Join(filepath.Dir(config["SLURM_CONF"]), "plugstack.conf"), filepath.Join(configless, "plugstack.conf")}
	for _, path := range candidates {
		if !filepath.IsAbs(path) {
			continue
		}
		if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	return "", fmt.Errorf("there is no plugstack.conf, and jobs are in the network of the hosts: write 'optional /usr/libexec/berth/%s' into %s", pluginName, candidates[1])
}

// pluginOf returns the path of the plugin named in a plugstack.conf or in one of its
// included files.
func pluginOf(stack string, folders []string) (string, error) {
	path, err := pluginIn(stack, 0)
	if err != nil {
		return "", err
	}
	if path == "" {
		return "", fmt.Errorf("%s does not name %s, and jobs are in the network of the hosts: add 'optional /usr/libexec/berth/%s'", stack, pluginName, pluginName)
	}
	if filepath.IsAbs(path) {
		folders = []string{"/"}
	}
	for _, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, path)); err == nil {
			return filepath.Join(folder, path), nil
		}
	}
	return "", fmt.Errorf("%s names %s, which is not there: correct it, or install the plugin", stack, path)
}

// pluginIn returns the plugin's path as a plugstack.conf names it, or "" if the file does
// not name the plugin. depth is the number of files that include this one.
func pluginIn(stack string, depth int) (string, error) {
	const deepest = 8
	if depth > deepest {
		return "", fmt.Errorf("%s: files include each other", stack)
	}
	text, err := os.ReadFile(stack)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if fields[0] != "include" {
			if filepath.Base(fields[1]) == pluginName {
				return fields[1], nil
			}
			continue
		}
		files, err := filepath.Glob(fields[1])
		if err != nil {
			return "", fmt.Errorf("%s: include %s: %w", stack, fields[1], err)
		}
		for _, file := range files {
			if path, err := pluginIn(file, depth+1); err != nil || path != "" {
				return path, err
			}
		}
	}
	return "", nil
}

// builtFor returns the Slurm release that a plugin was built for. The plugin holds it
// in the number plugin_version: the upper 16 bits and the next 8. The lowest 8 bits,
// the micro version, may differ.
func builtFor(path string) (string, error) {
	file, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	for _, symbol := range symbols {
		if symbol.Name != "plugin_version" || int(symbol.Section) >= len(file.Sections) {
			continue
		}
		section := file.Sections[symbol.Section]
		var number [4]byte
		if _, err := section.ReadAt(number[:], int64(symbol.Value-section.Addr)); err != nil {
			return "", fmt.Errorf("read the version in %s: %w", path, err)
		}
		version := file.ByteOrder.Uint32(number[:])
		return fmt.Sprintf("%d.%02d", version>>16, version>>8&0xff), nil
	}
	return "", fmt.Errorf("%s is not a plugin of Slurm: it has no plugin_version", path)
}

// release returns the release in the output of --version: 22.05 for "slurm-wlm
// 22.05.8".
func release(version string) string {
	fields := strings.Fields(version)
	if len(fields) == 0 {
		return ""
	}
	parts := strings.SplitN(fields[len(fields)-1], ".", 3)
	if len(parts) < 2 {
		return fields[len(fields)-1]
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	if err := errors.Join(err1, err2); err != nil {
		return fields[len(fields)-1]
	}
	return fmt.Sprintf("%d.%02d", major, minor)
}
